"""Small tools that rollouts and users share: identifiers, imports, rewards, limits and digests."""
