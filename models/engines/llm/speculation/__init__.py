"""When tokens that are guessed from the text pay."""
