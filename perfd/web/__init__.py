"""The page that people look at: static assets, and the routes that serve them."""
