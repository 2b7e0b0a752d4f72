"""Where records lie: the contract (base) and the store of a single machine (sqlite)."""
