"""Both console scripts, `osmosis` and `osmosis-store`; nothing below reads the environment."""
