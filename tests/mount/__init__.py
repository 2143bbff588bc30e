"""Real mounts, of a real daemon, judged by what a process sees through them."""
