package kip1279

import "fmt"

// Error codes. Those below 134 are Kafka's own that the KIP reuses.
const (
	None                            int16 = 0
	UnknownServerError              int16 = -1
	UnknownTopicOrPartition         int16 = 3
	RequestTimedOut                 int16 = 7
	CoordinatorLoadInProgress       int16 = 14
	CoordinatorNotAvailable         int16 = 15
	NotCoordinator                  int16 = 16
	InvalidTopic                    int16 = 17
	ClusterAuthorizationFailed      int16 = 31
	UnsupportedVersion              int16 = 35
	TopicAlreadyExists              int16 = 36
	InvalidConfig                   int16 = 40
	InvalidRequest                  int16 = 42
	PolicyViolation                 int16 = 44
	FencedLeaderEpoch               int16 = 74
	InconsistentTopicID             int16 = 103
	InconsistentClusterID           int16 = 104
	FencedStateEpoch                int16 = 124
	ReadOnlyTopic                   int16 = 134
	ClusterMirrorAlreadyExists      int16 = 136
	UnknownClusterMirror            int16 = 137
	TopicAlreadyInClusterMirror     int16 = 138
	TopicNotInClusterMirror         int16 = 139
	MirrorTopicAlreadyPaused        int16 = 140
	MirrorTopicNotPaused            int16 = 141
	MirrorTopicBeingStopped         int16 = 142
	ClusterMirrorNotEmpty           int16 = 143
	ClusterMirrorAuthorizationError int16 = 144
	InvalidClusterMirrorStates      int16 = 145
	MirrorTopicNotStopped           int16 = 146
)

var errorNames = map[int16]string{
	None: "NONE", UnknownServerError: "UNKNOWN_SERVER_ERROR", UnknownTopicOrPartition: "UNKNOWN_TOPIC_OR_PARTITION",
	RequestTimedOut: "REQUEST_TIMED_OUT", CoordinatorNotAvailable: "COORDINATOR_NOT_AVAILABLE",
	ClusterAuthorizationFailed: "CLUSTER_AUTHORIZATION_FAILED",
	CoordinatorLoadInProgress:  "COORDINATOR_LOAD_IN_PROGRESS",
	NotCoordinator:             "NOT_COORDINATOR", InvalidTopic: "INVALID_TOPIC_EXCEPTION", UnsupportedVersion: "UNSUPPORTED_VERSION",
	TopicAlreadyExists: "TOPIC_ALREADY_EXISTS", InvalidConfig: "INVALID_CONFIG", InvalidRequest: "INVALID_REQUEST",
	PolicyViolation: "POLICY_VIOLATION", FencedLeaderEpoch: "FENCED_LEADER_EPOCH",
	InconsistentTopicID: "INCONSISTENT_TOPIC_ID", InconsistentClusterID: "INCONSISTENT_CLUSTER_ID",
	FencedStateEpoch: "FENCED_STATE_EPOCH", ReadOnlyTopic: "READ_ONLY_TOPIC",
	ClusterMirrorAlreadyExists: "CLUSTER_MIRROR_ALREADY_EXISTS", UnknownClusterMirror: "UNKNOWN_CLUSTER_MIRROR",
	TopicAlreadyInClusterMirror: "TOPIC_ALREADY_IN_CLUSTER_MIRROR", TopicNotInClusterMirror: "TOPIC_NOT_IN_CLUSTER_MIRROR",
	MirrorTopicAlreadyPaused: "MIRROR_TOPIC_ALREADY_PAUSED", MirrorTopicNotPaused: "MIRROR_TOPIC_NOT_PAUSED",
	MirrorTopicBeingStopped: "MIRROR_TOPIC_BEING_STOPPED", ClusterMirrorNotEmpty: "CLUSTER_MIRROR_NOT_EMPTY",
	ClusterMirrorAuthorizationError: "CLUSTER_MIRROR_AUTHORIZATION_FAILED",
	InvalidClusterMirrorStates:      "INVALID_CLUSTER_MIRROR_STATES", MirrorTopicNotStopped: "MIRROR_TOPIC_NOT_STOPPED",
}

// ErrorName returns the upper-case name of an error code.
func ErrorName(code int16) string {
	if n, ok := errorNames[code]; ok {
		return n
	}
	return fmt.Sprintf("error code %d", code)
}
