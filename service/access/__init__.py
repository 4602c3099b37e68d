"""Who may do how much: API keys, web pages, the policy of each route, and the record of a request."""
