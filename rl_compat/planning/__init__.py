"""Planning: hardware facts and requests become a Plan."""
