"""`penstock top`: live view of the run in a terminal. snapshot.py reads, picture.py draws the queue, text.py prints it once, app.py
refreshes."""
