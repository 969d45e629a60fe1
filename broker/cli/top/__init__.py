"""``magnetar top``: what happens in a cluster now, on a terminal."""
