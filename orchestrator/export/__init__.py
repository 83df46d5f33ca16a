"""`penstock export`: the data pool in the formats of existing tools."""
