"""Read long texts out of packages of Debian."""
