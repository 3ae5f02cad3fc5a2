"""The control loop: a work queue of services that changed, and workers that reconcile them.

Names follow client-go and controller-runtime: the cluster's informer notifies, the work queue deduplicates and backs
off, the controller reconciles.
"""
