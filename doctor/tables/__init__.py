"""Published facts about cards, drivers and packages, as questions."""
