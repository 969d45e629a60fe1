"""``magnetar bookie-shell``: what operators ask and tell a cluster of bookies."""
