"""Other routers' rules, written from their published descriptions, as policies of ours.

They get what they would have: their own record of what they sent, or the engines' metrics.
"""
