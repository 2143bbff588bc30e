"""Mount suite: real mounts, of a real daemon, judged by what a process sees through them."""
