"""Policy, value and preference losses."""
