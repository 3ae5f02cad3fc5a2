"""Where a router gets its configuration, keys and siblings from, as the command line says."""

import logging
from pathlib import Path

from blade_router.admission.key_sources import Keys, SecretKeys, WatchedKeys
from blade_router.arguments import Options
from blade_router.config.parsing import ConfigError
from blade_router.config.replicas import FileReplicas
from blade_router.config.sources import Configuration, Source, WatchedFile
from blade_router.kubernetes import ConfigMapSource, EndpointSliceSource, ServiceReplicas

logger = logging.getLogger("blade_router.router")


def make_sources(options: Options) -> Configuration:
    """The sources of configuration the command line names.

    Raises:
        ConfigError: the API is to be watched, and this pod has no ServiceAccount.
    """
    cluster = options.cluster

    def source_of(service: Path | str) -> Source:
        if isinstance(service, Path):
            return WatchedFile(service)
        if cluster is None:
            raise ConfigError(f"service {service}: there is no cluster to find it in")
        return EndpointSliceSource(cluster, service, wakes)

    config = WatchedFile(options.config) if options.config else None
    config_map = ConfigMapSource(cluster, options.config_map) if cluster and options.config_map else None

    def wakes() -> bool:
        return any(source is not None and source.config.hold.wakes for source in (config_map, config))

    return Configuration(
        options.endpoints,
        config=config,
        config_map=config_map,
        service=source_of(options.service) if options.service is not None else None,
        services={each.stem if isinstance(each, Path) else each: source_of(each) for each in options.services},
        policy=options.policy,
    )


def make_replica_source(options: Options) -> FileReplicas | ServiceReplicas | None:
    """The source of the replicas that share limits; None: the command line said which or how many there are."""
    if isinstance(options.peers, Path):
        return FileReplicas(options.peers)
    if isinstance(options.peers, str) and options.cluster is not None:
        return ServiceReplicas(options.cluster, options.peers, options.admin_port)
    return None


def make_keys(options: Options) -> Keys | None:
    """The sources of API keys the command line names; None: no key is required.

    Raises:
        ConfigError: the file is missing or not valid, and there is no Secret that would say the same: a person must
            see that now.
    """
    path = WatchedKeys(options.keys) if options.keys is not None else None
    secret = SecretKeys(options.cluster, options.keys_secret) if options.cluster and options.keys_secret else None
    if path is not None:
        try:
            path.load()
        except ConfigError as error:
            if secret is None:
                raise
            logger.error("%s; waiting for the Secret's keys", error)
    return Keys(path, secret) if path is not None or secret is not None else None
