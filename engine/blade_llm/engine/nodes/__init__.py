"""One engine on several machines: how they find each other, agree, and notice that one of them is gone.

Machine 0, the *leader*, has rank 0 with the scheduler. The other machines, its *followers*, connect to it: over this
link they are let in or refused, get the leader's settings, and each side hears from the other twice a second. Nothing
here knows what a rank computes; steps and collectives have connections of their own.
"""
