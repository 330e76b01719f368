"""What a microphone in a car hears beside and around the words: noise, levels, the cabin's own sound."""
