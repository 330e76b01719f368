"""What happens in the process, for programs that show it: a bounded queue for each of them, and nothing kept."""
