package proxy

// Error codes of Kafka's protocol that we answer with (org.apache.kafka.common.protocol.Errors).
const (
	codeOffsetOutOfRange        int16 = 1
	codeUnknownTopic            int16 = 3 // UNKNOWN_TOPIC_OR_PARTITION
	codeLeaderNotAvailable      int16 = 5
	codeNotLeader               int16 = 6 // NOT_LEADER_OR_FOLLOWER
	codeCoordinatorNotAvailable int16 = 15
	codeTopicAuthorization      int16 = 29
	codeClusterAuthorization    int16 = 31
	codeUnsupportedMechanism    int16 = 33 // UNSUPPORTED_SASL_MECHANISM
	codeUnsupportedVersion            = 35
	codeInvalidRequest          int16 = 42
	codePolicyViolation         int16 = 44
	codeLogDirNotFound          int16 = 57
	codeFetchSessionNotFound    int16 = 70
	codeFencedLeaderEpoch       int16 = 74
	codeUnknownLeaderEpoch      int16 = 75
	codeUnsupportedCodec        int16 = 76 // UNSUPPORTED_COMPRESSION_TYPE
	codeOffsetNotAvailable      int16 = 78
	codeUnknownTopicID          int16 = 100
)
