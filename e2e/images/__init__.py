"""Container images for the end-to-end tests, built from this tree without Docker and without a registry.

``python -m e2e.images`` makes a stand-in for the public base image by debootstrap, builds both Dockerfiles with buildah
and keeps the results as archives that ``ctr images import`` and ``docker load`` take. See docs/images.md.
"""
