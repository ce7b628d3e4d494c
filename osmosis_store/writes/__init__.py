"""Every INSERT and UPDATE, by what they write; plain functions of a Core connection."""
