"""Questions to the tables of published facts about cards, drivers and packages."""
