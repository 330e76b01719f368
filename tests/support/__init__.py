"""What tests share: fakes, paths, audio."""
