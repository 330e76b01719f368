"""From words to calls: numbers, zones, intents, matching by spelling and by sound."""
