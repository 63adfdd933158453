package kip1279

// API keys. 97 belongs to an earlier generation than the others, 106 and 107 to a later one.
const (
	KeyCreateClusterMirror    int16 = 94
	KeyStartMirrorTopics      int16 = 95
	KeyStopMirrorTopics       int16 = 96
	KeyLastMirroredEpochs     int16 = 97
	KeyListClusterMirrors     int16 = 98
	KeyDescribeClusterMirrors int16 = 99
	KeyReadMirrorStates       int16 = 100
	KeyWriteMirrorStates      int16 = 101
	KeyPauseMirrorTopics      int16 = 102
	KeyResumeMirrorTopics     int16 = 103
	KeyDeleteClusterMirror    int16 = 104
	KeyBumpLeaderEpochs       int16 = 105
	KeyReadMirrorOffsets      int16 = 106
	KeyRecoverMirrorTopics    int16 = 107
	// KeyKmirrorCall is kmirror's own: verbs that the KIP has no RPC for.
	KeyKmirrorCall int16 = 30001
)

// API is one entry of the registry. All versions are flexible.
type API struct {
	Key      int16
	Name     string
	Min, Max int16
	// Request and Response make empty messages.
	Request, Response func() Message
}

// apis is in the order of the keys.
var apis = []API{
	{
		Key: KeyCreateClusterMirror, Name: "CreateClusterMirror",
		Request: newMessage[CreateClusterMirrorRequest], Response: newMessage[CreateClusterMirrorResponse],
	},
	{
		Key: KeyStartMirrorTopics, Name: "StartMirrorTopics",
		Request: newMessage[StartMirrorTopicsRequest], Response: newMessage[StartMirrorTopicsResponse],
	},
	{
		Key: KeyStopMirrorTopics, Name: "StopMirrorTopics",
		Request: newMessage[StopMirrorTopicsRequest], Response: newMessage[StopMirrorTopicsResponse],
	},
	{
		Key: KeyLastMirroredEpochs, Name: "LastMirroredEpochs",
		Request: newMessage[LastMirroredEpochsRequest], Response: newMessage[LastMirroredEpochsResponse],
	},
	{
		Key: KeyListClusterMirrors, Name: "ListClusterMirrors",
		Request: newMessage[ListClusterMirrorsRequest], Response: newMessage[ListClusterMirrorsResponse],
	},
	{
		Key: KeyDescribeClusterMirrors, Name: "DescribeClusterMirrors",
		Request: newMessage[DescribeClusterMirrorsRequest], Response: newMessage[DescribeClusterMirrorsResponse],
	},
	{
		Key: KeyReadMirrorStates, Name: "ReadMirrorStates",
		Request: newMessage[ReadMirrorStatesRequest], Response: newMessage[ReadMirrorStatesResponse],
	},
	{
		Key: KeyWriteMirrorStates, Name: "WriteMirrorStates",
		Request: newMessage[WriteMirrorStatesRequest], Response: newMessage[WriteMirrorStatesResponse],
	},
	{
		Key: KeyPauseMirrorTopics, Name: "PauseMirrorTopics",
		Request: newMessage[PauseMirrorTopicsRequest], Response: newMessage[PauseMirrorTopicsResponse],
	},
	{
		Key: KeyResumeMirrorTopics, Name: "ResumeMirrorTopics",
		Request: newMessage[ResumeMirrorTopicsRequest], Response: newMessage[ResumeMirrorTopicsResponse],
	},
	{
		Key: KeyDeleteClusterMirror, Name: "DeleteClusterMirror",
		Request: newMessage[DeleteClusterMirrorRequest], Response: newMessage[DeleteClusterMirrorResponse],
	},
	{
		Key: KeyBumpLeaderEpochs, Name: "BumpLeaderEpochs",
		Request: newMessage[BumpLeaderEpochsRequest], Response: newMessage[BumpLeaderEpochsResponse],
	},
	{
		Key: KeyReadMirrorOffsets, Name: "ReadMirrorOffsets",
		Request: newMessage[ReadMirrorOffsetsRequest], Response: newMessage[ReadMirrorOffsetsResponse],
	},
	{
		Key: KeyRecoverMirrorTopics, Name: "RecoverMirrorTopics",
		Request: newMessage[RecoverMirrorTopicsRequest], Response: newMessage[RecoverMirrorTopicsResponse],
	},
	{
		Key: KeyKmirrorCall, Name: "KmirrorCall",
		Request: newMessage[KmirrorCallRequest], Response: newMessage[KmirrorCallResponse],
	},
}

// newMessage makes an empty message with the schema's defaults.
func newMessage[T any, P interface {
	*T
	Message
}]() Message {
	m := P(new(T))
	if d, ok := any(m).(interface{ setDefaults() }); ok {
		d.setDefaults()
	}
	return m
}

// APIs returns the registry in the order of the keys.
func APIs() []API { return append([]API(nil), apis...) }

// Lookup returns the API of a key.
func Lookup(key int16) (API, bool) {
	for _, a := range apis {
		if a.Key == key {
			return a, true
		}
	}
	return API{}, false
}

// Status opens every response.
type Status struct {
	ThrottleMillis int32
	ErrorCode      int16
	ErrorMessage   *string
}

// Response is a response of this package: all open with a Status.
type Response interface {
	Message
	Head() *Status
}

// Head returns what opens the response.
func (s *Status) Head() *Status { return s }

func (s *Status) walk(c *codec) {
	c.int32(&s.ThrottleMillis)
	c.int16(&s.ErrorCode)
	c.nullable(&s.ErrorMessage)
}

// own is one of kmirror's tagged fields: JSON, absent when empty.
func own(number uint32, v *[]byte) field {
	return field{number: number, present: len(*v) > 0, walk: func(c *codec) { c.rest(v) }}
}
