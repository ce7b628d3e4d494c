"""Every SELECT, by what it asks; plain functions of a Core connection."""
