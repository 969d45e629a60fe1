"""What each setting of Apache Pulsar 4.2.4's broker means here, beside those that are obeyed.

Pulsar has 568 names (fields of its ServiceConfiguration). Those that ``BrokerConfig`` has a field
for are obeyed; each of the others is in one of three tables. Defaults are Pulsar's.

Beside them Pulsar hands each ``bookkeeper_NAME`` to BookKeeper's client, whatever the name.
"""

import logging
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from magnetar.bookkeeper.environment import normalize_key
from magnetar.bookkeeper.layout.metadata_service_uri import store_url_of

logger = logging.getLogger(__name__)


class UnsupportedSetting(NamedTuple):
    default: str
    instead: str
    """How it is here, whatever the setting says."""


_PEM: Final = "certificates come from PEM files"
_SHOWN: Final = "brokers show a token, not a certificate, by brokerClientAuthenticationPlugin"

_LACKING: Final = {
    "additionalSystemCursorNames": ("", "quotas and expiry hold for every subscription"),
    "allowOverrideEntryFilters": ("false", "entries are not filtered"),
    "authenticationRoleLoggingAnonymizer": ("NONE", "roles are logged as they are"),
    "bookkeeperTLSKeyFileType": ("PEM", "keys are PEM files"),
    "bookkeeperTLSKeyStorePasswordPath": ("", "keys are PEM files without a password"),
    "bookkeeperTLSProviderFactoryClass": ("org.apache.bookkeeper.tls.TLSContextFactory", _PEM),
    "bookkeeperTLSTrustCertTypes": ("PEM", "certificates are PEM files"),
    "bookkeeperTLSTrustStorePasswordPath": ("", "certificates are PEM files"),
    "brokerClientCertificateFilePath": ("", _SHOWN),
    "brokerClientKeyFilePath": ("", _SHOWN),
    "brokerClientSslFactoryPlugin": ("org.apache.pulsar.common.util.DefaultPulsarSslFactory", _PEM),
    "brokerClientTlsCiphers": ("", "what Python's defaults allow"),
    "brokerClientTlsEnabledWithKeyStore": ("false", _PEM),
    "brokerClientTlsProtocols": ("", "TLS 1.2 and 1.3"),
    "brokerEntryPayloadProcessors": ("", "payloads are not processed"),
    "brokerInterceptors": ("", "nothing is intercepted"),
    "clientLibraryVersionCheckEnabled": ("false", "clients of any version may connect"),
    "configurationMetadataSyncEventTopic": ("", "metadata are not synchronized between clusters"),
    "enableBrokerSideSubscriptionPatternEvaluation": ("true", "patterns are always evaluated here"),
    "enableBrokerTopicListWatcher": ("true", "clients may always watch lists of topics"),
    "entryFilterNames": ("", "entries are not filtered"),
    "haProxyProtocolEnabled": ("false", "the PROXY protocol is not spoken"),
    "httpRequestsFailOnUnknownPropertiesEnabled": (
        "false",
        "unknown fields of documents are ignored",
    ),
    "managedLedgerMaxAckQuorum": ("5", "policies may ask for any quorum"),
    "managedLedgerMaxEnsembleSize": ("5", "policies may ask for any ensemble"),
    "managedLedgerMaxReadsInFlightSizeInMB": (
        "0",
        "reads in flight are bounded for each topic, not together",
    ),
    "managedLedgerMaxWriteQuorum": ("5", "policies may ask for any quorum"),
    "maxConsumerMetadataSize": ("1024", "the limit is 1024 bytes"),
    "maxSameAddressConsumersPerTopic": ("0", "consumers are not counted by address"),
    "maxSameAddressProducersPerTopic": ("0", "producers are not counted by address"),
    "metadataSyncEventTopic": ("", "metadata are not synchronized between clusters"),
    "resourceUsageTransportClassName": ("", "resource groups limit nothing"),
    "schemaRegistryCompatibilityCheckers": (
        "org.apache.pulsar.broker.service.schema.AvroSchemaCompatibilityCheck,org.apache.pulsar.broker.service.schema.ExternalSchemaCompatibilityCheck,org.apache.pulsar.broker.service.schema.JsonSchemaCompatibilityCheck,org.apache.pulsar.broker.service.schema.ProtobufNativeSchemaCompatibilityCheck",
        "compatibility is judged by Pulsar's own rules",
    ),
    "sslFactoryPlugin": ("org.apache.pulsar.common.util.DefaultPulsarSslFactory", _PEM),
    "strictAuthMethod": ("false", "providers are asked in turn where a client names none"),
    "strictTopicNameEnabled": ("false", "topics may be named like partitions"),
    "strictlyVerifySubscriptionName": ("false", "subscriptions may have any name"),
    "subscriptionPatternMaxLength": ("50", "the limit is 50 characters"),
    "supportedNamespaceBundleSplitAlgorithms": (
        "flow_or_qps_equally_divide,range_equally_divide,specified_positions_divide,topic_count_equally_divide",
        "all algorithms are always allowed",
    ),
    "tlsEnabledWithKeyStore": ("false", _PEM),
    "webServiceHaProxyProtocolEnabled": ("false", "the PROXY protocol is not spoken"),
    "webServiceTlsCiphers": ("", "tlsCiphers holds for HTTPS, too"),
    "webServiceTlsProtocols": ("", "tlsProtocols holds for HTTPS, too"),
}
LACKING: Final = {name: UnsupportedSetting(*row) for name, row in _LACKING.items()}
"""What restricts or guarantees something that isn't restricted or guaranteed here: any other value
than the default ends the start."""

_PEM_FILES: Final = "certificates are PEM files (bookkeeperTLSTrustCertsFilePath)"
_TLS: Final = "what OpenSSL's defaults allow"

_BOOKKEEPER: Final = {
    "bookkeeper_clientAuthProviderFactoryClass": (
        "",
        "bookies are shown a token (bookkeeperClientAuthenticationPlugin)",
    ),
    "bookkeeper_enforceMinNumRacksPerWriteQuorum": (
        "false",
        "bookkeeperClientEnforceMinNumRacksPerWriteQuorum says it",
    ),
    "bookkeeper_maxNumEnsembleChanges": (
        "2147483647",
        "bookkeeper_maxAllowedEnsembleChanges says it",
    ),
    "bookkeeper_minNumRacksPerWriteQuorum": (
        "2",
        "bookkeeperClientMinNumRacksPerWriteQuorum says it",
    ),
    "bookkeeper_networkTopologyScriptFileName": ("", "bookies and racks-info name racks"),
    "bookkeeper_reppDnsResolverClass": (
        "org.apache.pulsar.bookie.rackawareness.BookieRackAffinityMapping",
        "bookies and racks-info name racks",
    ),
    "bookkeeper_tlsCertificatePath": (
        "",
        "bookkeeperTLSCertificateFilePath names the broker's certificate",
    ),
    "bookkeeper_tlsEnabledCipherSuites": ("", _TLS),
    "bookkeeper_tlsEnabledProtocols": ("", _TLS),
    "bookkeeper_tlsKeyStore": ("", _PEM_FILES),
    "bookkeeper_tlsTrustStore": ("", _PEM_FILES),
    "bookkeeper_zkEnableSecurity": ("false", "metadata have no access lists"),
}
BOOKKEEPER: Final = {name: UnsupportedSetting(*row) for name, row in _BOOKKEEPER.items()}
"""As ``LACKING``, of settings of BookKeeper's client (4.17); defaults are those of Pulsar's broker.
Not here: ``bookkeeper_tlsHostnameVerificationEnabled``, for names are always verified."""

FEATURES: Final[dict[str, str]] = {
    "activeConsumerFailoverConsistentHashing": "false",
    "additionalServlets": "",
    "allowAclChangesOnNonExistentTopics": "false",
    "autoSkipNonRecoverableData": "false",
    "bindAddresses": "",
    "bootstrapNamespaces": "",
    "brokerDeleteInactivePartitionedTopicMetadataEnabled": "false",
    "clusterMigrationCheckDurationSeconds": "0",
    "configurationStoreConfigPath": "",
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"
    ),
    "enablePackagesManagement": "false",
    "enableRunBookieAutoRecoveryTogether": "false",
    "enableRunBookieTogether": "false",
    "functionsWorkerEnablePackageManagement": "false",
    "functionsWorkerEnabled": "false",
    "managedLedgerAddEntryTimeoutSeconds": "0",
    "managedLedgerForceRecovery": "false",
    "managedLedgerInactiveLedgerRolloverTimeSeconds": "0",
    "managedLedgerReadEntryTimeoutSeconds": "0",
    "managedLedgerStorageClassName": "org.apache.pulsar.broker.ManagedLedgerClientFactory",
    "messagingProtocols": "",
    "pulsarResourcesExtendedClassName": "org.apache.pulsar.broker.DefaultPulsarResourcesExtended",
    "schemaLedgerForceRecovery": "false",
    "schemaRegistryStorageClassName": (
        "org.apache.pulsar.broker.service.schema.BookkeeperSchemaStorageFactory"
    ),
    "topicFactoryClassName": "",
    "triggerOffloadOnTopicLoad": "false",
    "zookeeperSessionExpiredPolicy": "reconnect",
}
"""What asks for something that isn't here, and on which nothing else relies: a warning, unless it
is the default, which is the value here."""

TUNING: Final = frozenset(
    """
additionalServletDirectory aggregatePublisherStatsByProducerName allowedTopicPropertyKeysForMetrics
bookkeeperClientExposeStatsToPrometheus bookkeeperClientLimitStatsLogging
bookkeeperClientNumIoThreads bookkeeperClientNumWorkerThreads
bookkeeperClientSeparatedIoThreadsEnabled bookkeeperClientThrottleValue
bookkeeperNumberOfChannelsPerBookie bookkeeperTlsCertFilesRefreshDurationSeconds
bookkeeperUseV2WireProtocol brokerClientSslFactoryPluginParams brokerClientSslProvider
brokerClientTlsKeyStore brokerClientTlsKeyStorePassword brokerClientTlsKeyStoreType
brokerClientTlsTrustStore brokerClientTlsTrustStorePassword brokerClientTlsTrustStoreType
brokerInterceptorsDirectory brokerPublisherThrottlingTickTimeMillis
brokerReplicationInactiveThresholdSeconds
brokerServiceCompactionPhaseOneLoopTimeInSeconds brokerServicePurgeInactiveFrequencyInSeconds
cacheEvictionByExpectedReadCount cacheEvictionByMarkDeletedPosition
clusterMigrationAutoResourceCreation compactionServiceFactoryClassName
createTopicToRemoteClusterForReplication delayedDeliveryFixedDelayDetectionLookahead
delayedDeliveryMaxIndexesPerBucketSnapshotSegment delayedDeliveryMaxNumBuckets
delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds delayedDeliveryMinIndexCountPerBucket
disableHttpDebugMethods dispatchRateLimiterFactoryClassName
dispatchThrottlingForFilteredEntriesEnabled dispatchThrottlingRatePerReplicatorInByte
dispatchThrottlingRatePerReplicatorInMsg dispatcherDispatchMessagesInSubscriptionThread
dispatcherEntryFilterRescheduledMessageDelay dispatcherMaxReadSizeBytes dispatcherMinReadBatchSize
dispatcherPauseOnAckStatePersistentEnabled dispatcherReadFailureBackoffInitialTimeInMs
dispatcherReadFailureBackoffMandatoryStopTimeInMs dispatcherReadFailureBackoffMaxTimeInMs
dispatcherRetryBackoffInitialTimeInMs dispatcherRetryBackoffMaxTimeInMs enableBusyWait
enableNamespaceIsolationUpdateOnTime entryFiltersDirectory exposeBundlesMetricsInPrometheus
exposeCustomTopicMetricLabelsEnabled exposeManagedCursorMetricsInPrometheus
exposeManagedLedgerMetricsInPrometheus exposePreciseBacklogInPrometheus exposePublisherStats
exposeSubscriptionBacklogSizeInPrometheus functionsWorkerServiceNarPackage
healthCheckMetricsUpdateTimeInSeconds httpServerThreadPoolQueueSize inflightSaslContextExpiryMs
isRunningStandalone jvmGCMetricsLoggerClassName keySharedLookAheadMsgInReplayThresholdPerConsumer
keySharedLookAheadMsgInReplayThresholdPerSubscription keySharedUnblockingIntervalMs kinitCommand
lazyCursorRecovery loadBalancerBandwithInResourceWeight loadBalancerBandwithOutResourceWeight
loadBalancerBrokerComfortLoadLevelPercentage loadBalancerBrokerUnderloadedThresholdPercentage
loadBalancerDebugModeEnabled loadBalancerHostUsageCheckIntervalMinutes
loadBalancerInFlightServiceUnitStateWaitingTimeInMillis loadBalancerMemoryResourceWeight
loadBalancerMultiPhaseBundleUnload loadBalancerNamespaceBundleSplitConditionHitCountThreshold
loadBalancerOverrideBrokerNicSpeedGbps loadBalancerOverrideBrokerNics loadBalancerPlacementStrategy
loadBalancerServiceUnitStateMaxConcurrentOverrides
loadBalancerServiceUnitStateMonitorIntervalInSeconds
loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds loadBalancerServiceUnitTableViewSyncer
loadBalancerSplitIntervalMinutes loadBalancerTransferEnabled loadManagerClassName
loadManagerServiceUnitStateTableViewClassName lookupPropertyPrefix
managedCursorInfoCompressionThresholdInBytes managedCursorInfoCompressionType
managedLedgerCacheCopyEntries
managedLedgerCacheEvictionExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes
managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed managedLedgerCacheEvictionFrequency
managedLedgerCacheEvictionIntervalMs managedLedgerCacheEvictionTimeThresholdMillis
managedLedgerCacheEvictionWatermark
managedLedgerContinueCachingAddedEntriesAfterLastActiveCursorLeavesMillis
managedLedgerCursorBackloggedThreshold managedLedgerCursorPositionFlushSeconds
managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis
managedLedgerDeleteMaxConcurrentRequests managedLedgerInactiveOffloadedLedgerEvictionTimeSeconds
managedLedgerInfoCompressionThresholdInBytes managedLedgerInfoCompressionType
managedLedgerMaxBacklogBetweenCursorsForCaching managedLedgerMaxBatchDeletedIndexToPersist
managedLedgerMaxReadsInFlightPermitsAcquireQueueSize
managedLedgerMaxReadsInFlightPermitsAcquireTimeoutMillis managedLedgerMaxUnackedRangesToPersist
managedLedgerMaxUnackedRangesToPersistInMetadataStore
managedLedgerMaxUnackedRangesToPersistInZooKeeper managedLedgerMetadataOperationsTimeoutSeconds
managedLedgerMinimumBacklogCursorsForCaching managedLedgerMinimumBacklogEntriesForCaching
managedLedgerNewEntriesCheckDelayInMillis managedLedgerNumSchedulerThreads
managedLedgerOffloadPrefetchRounds managedLedgerPersistIndividualAckAsLongArray
managedLedgerPrometheusStatsLatencyRolloverSeconds managedLedgerStatsPeriodSeconds
managedLedgerTraceTaskExecution managedLedgerUnackedRangesOpenCacheSetEnabled
maxConcurrentNonPersistentMessagePerConnection
maxInflightSaslContext maxPendingPublishRequestsPerConnection maxSecondsToClearTopicNameCache
maxTopicListInFlightDirectMemSizeMB maxTopicListInFlightDirectMemSizePermitsAcquireQueueSize
maxTopicListInFlightDirectMemSizePermitsAcquireTimeoutMillis maxTopicListInFlightHeapMemSizeMB
maxTopicListInFlightHeapMemSizePermitsAcquireQueueSize
maxTopicListInFlightHeapMemSizePermitsAcquireTimeoutMillis metadataStoreAllowReadOnlyOperations
metadataStoreBatchingEnabled metadataStoreBatchingMaxDelayMillis metadataStoreBatchingMaxOperations
metadataStoreBatchingMaxSizeKb metadataStoreCacheExpirySeconds metadataStoreSerDesThreads
metricsBufferResponse metricsServletTimeoutMs namespaceBundleUnloadingTimeoutMs
narExtractionDirectory numAcceptorThreads numCacheExecutorThreadPoolSize numExecutorThreadPoolSize
numHttpServerThreads numIOThreads numOrderedExecutorThreads numTransactionReplayThreadPoolSize
numWorkerThreadsForNonPersistentTopic offloadersDirectory packagesManagementLedgerRootPath
packagesManagementStorageProvider packagesReplicas persistentUnackedRangesWithMultipleEntriesEnabled
preciseDispatcherFlowControl preciseTimeBasedBacklogQuotaCheck protocolHandlerDirectory
pulsarChannelPauseReceivingCooldownMs pulsarChannelPauseReceivingCooldownRateLimitPeriodMs
pulsarChannelPauseReceivingCooldownRateLimitPermits pulsarChannelPauseReceivingRequestsIfUnwritable
pulsarChannelWriteBufferHighWaterMark pulsarChannelWriteBufferLowWaterMark
replicatedSubscriptionsSnapshotFrequencyMillis
replicatedSubscriptionsSnapshotMaxCachedPerSubscription
replicatedSubscriptionsSnapshotTimeoutSeconds replicationConnectionsPerBroker
replicationMetricsEnabled replicationPolicyCheckDurationSeconds replicationProducerQueueSize
replicationStartAt replicationTlsEnabled replicatorPrefix
resourceUsageTransportPublishIntervalInSecs retentionCheckIntervalInSeconds saslJaasClientAllowedIds
saslJaasServerRoleTokenSignerSecretPath saslJaasServerSectionName schemaJsonAllowLegacyJacksonFormat
skipBrokerShutdownOnOOM sslFactoryPluginParams statsUpdateInitialDelayInSecs
subscriptionKeySharedConsistentHashingReplicaPoints
subscriptionKeySharedUseClassicPersistentImplementation subscriptionRedeliveryTrackerEnabled
subscriptionSharedUseClassicPersistentImplementation systemTopicEnabled
systemTopicSchemaCompatibilityStrategy tlsHostnameVerificationEnabled tlsKeyStore
tlsKeyStorePassword tlsKeyStoreType tlsProvider tlsTrustStore tlsTrustStorePassword
tlsTrustStoreType topicBundleAssignmentStrategy
topicFencingTimeoutSeconds topicNameCacheMaxCapacity topicOrderedExecutorThreadNum
topicPoliciesCacheInitTimeoutSeconds topicPoliciesServiceClassName topicPolicyListenerReplayEnabled
topicPublisherThrottlingTickTimeMillis topicsPatternRegexImplementation
transactionBufferClientMaxConcurrentRequests transactionBufferClientOperationTimeoutInMills
transactionBufferProviderClassName transactionBufferSegmentedSnapshotEnabled
transactionBufferSnapshotMaxTransactionCount transactionBufferSnapshotMinTimeInMillis
transactionBufferSnapshotSegmentSize transactionLogBatchedWriteEnabled
transactionLogBatchedWriteMaxDelayInMillis transactionLogBatchedWriteMaxRecords
transactionLogBatchedWriteMaxSize transactionMetadataStoreProviderClassName
transactionPendingAckBatchedWriteEnabled transactionPendingAckBatchedWriteMaxDelayInMillis
transactionPendingAckBatchedWriteMaxRecords transactionPendingAckBatchedWriteMaxSize
transactionPendingAckLogIndexMinLag transactionPendingAckStoreProviderClassName
unblockStuckSubscriptionEnabled useSeparateThreadPoolForProtocolHandlers
webServiceLogDetailedAddresses webServiceTlsProvider webSocketConnectionsPerBroker
webSocketNumIoThreads webSocketNumServiceThreads webSocketPulsarClientMemoryLimitInMB
zooKeeperAllowReadOnlyOperations zooKeeperCacheExpirySeconds
""".split()  # noqa: SIM905  # 244 lines else
)
"""Threads, buffers, caches, intervals of parts that are made otherwise or don't exist, and what
only counts beside a switch of the other tables: nothing is lost by ignoring them."""


def lacking_error(name: str, text: str) -> str | None:
    """Why a value can't be taken; None: it can, or no table of restrictions has its name."""
    row = LACKING.get(name) or BOOKKEEPER.get(name)
    if row is None or is_default(text, row.default):
        return None
    return f"not in this version: {row.instead}; only {row.default or 'empty'} is taken"


def is_default(text: str, default: str) -> bool:
    """Whether a value is Pulsar's default. Empty: always, that is how Pulsar writes it.

    Lists have no order; numbers and words no spelling.
    """
    return text.strip() == "" or _meaning(text) == _meaning(default)


def _meaning(text: str) -> frozenset[str]:
    return frozenset(each.strip().lower() for each in text.split(",") if each.strip())


_STORE: Final = re.compile(r"(?:metadata-store:)?(?:zk(?:\+[a-z]+)?:)?(?://)?([^/]*)(/.*)?")
_LEDGERS: Final = "/ledgers"


BROKER_TIMESTAMP: Final = (
    "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"
)
MESSAGE_INDEX: Final = "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
INTERCEPTORS: Final = (
    *("", BROKER_TIMESTAMP, MESSAGE_INDEX),
    *(f"{BROKER_TIMESTAMP},{MESSAGE_INDEX}", f"{MESSAGE_INDEX},{BROKER_TIMESTAMP}"),
)
"""What ``brokerEntryMetadataInterceptors`` may be."""

DIGEST_NAMES: Final = {"CRC32C": "CRC32C", "CRC32": "CRC32", "MAC": "HMAC", "DUMMY": "DUMMY"}
"""Values of ``managedLedgerDigestType``, and what ledger metadata calls them."""


def apache_store_url(uri: str, metadata_store_url: str) -> str | None:
    """Where Apache BookKeeper keeps its ledgers that ``bookkeeperMetadataServiceUri`` names.

    None: ledgers are on our own bookies. The setting is empty, or names ``/ledgers`` below
    ``metadata_store_url``: the same servers in any order, port 2181 unless said.

    Raises:
        ValueError: nobody's ledgers can be there.
    """
    if not uri.strip():
        return None
    if not metadata_store_url:
        raise ValueError("ledgers of a standalone broker are in its own store")
    own_servers, own_path = _place_of(metadata_store_url)
    servers, path = _place_of(uri)
    if servers == own_servers and path == own_path + _LEDGERS:
        return None
    found = store_url_of(uri.strip())
    if found is None:
        raise ValueError("not zk+hierarchical://HOST:PORT/ledgers")
    return found


def _place_of(url: str) -> tuple[frozenset[str], str]:
    match = _STORE.fullmatch(url.strip())
    if match is None:
        return frozenset({url}), ""
    servers = (each.strip().lower() for each in re.split("[,;]", match[1]) if each.strip())
    named = (each if ":" in each else f"{each}:2181" for each in servers)
    return frozenset(named), (match[2] or "").rstrip("/")


_RESTRICTIONS: Final = LACKING.keys() | BOOKKEEPER.keys()
# The last one: names in bookies' certificates are always verified.
_WITHOUT_A_MEANING: Final = TUNING | {"bookkeeper_tlsHostnameVerificationEnabled"}
OTHER_KEYS: Final = {
    normalize_key(name): name for name in (*_RESTRICTIONS, *FEATURES, *_WITHOUT_A_MEANING)
}
"""Settings that no field is for: normalized name -> Pulsar's name."""


class OtherSettings:
    """Settings that no field is for: ``add`` each, a later one of a name wins, then ``end``."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[str, str, str]] = {}  # by Pulsar's name, or as given

    def add(self, key: str, text: str, source: str) -> None:
        self._given[OTHER_KEYS.get(normalize_key(key), key)] = key, text, source

    def end(self) -> None:
        """Say once for all what is ignored: a stock broker.conf has hundreds of them.

        Raises:
            ValueError: one restricts or guarantees what isn't restricted or guaranteed here.
        """
        unknown: list[str] = []
        features: list[str] = []
        tuning: list[str] = []
        for name, (key, text, source) in self._given.items():
            if name in _RESTRICTIONS:
                if (error := lacking_error(name, text)) is not None:
                    shown = "******" if "password" in name.lower() else text
                    raise ValueError(f"{key}={shown} ({source}): {error}")
            elif name in FEATURES:
                if not is_default(text, FEATURES[name]):
                    features.append(f"{key}={text}")
            elif name in _WITHOUT_A_MEANING:
                tuning.append(key)
            else:
                unknown.append(key)
        if unknown:
            logger.warning("ignored %d unknown settings: %s", len(unknown), _list(unknown))
        if features:
            logger.warning("settings of what isn't here: %s", _list(features))
        if tuning:
            logger.debug("settings without a meaning here: %s", _list(tuning))


def _list(texts: Iterable[str]) -> str:
    return ", ".join(sorted(texts))
