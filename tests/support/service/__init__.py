"""What tests of the service share: a child process under a fake service manager."""
