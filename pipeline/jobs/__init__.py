"""Jobs over topics: export, replay, backlog, load; ``magnetar pipeline`` calls them."""
