"""The process as its service manager sees it: readiness, status, watchdog, waiting for devices, installation."""
