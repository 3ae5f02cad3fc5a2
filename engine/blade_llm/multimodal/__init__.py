"""From the image and video parts of a conversation to the pixels that a vision tower takes: fetched, decoded, resized.
No torch: it runs in API-server processes, and what decodes strangers' files in worker processes of their own."""
