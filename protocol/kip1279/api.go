package kip1279

// API keys. 97 is a hole, 106 (ReadMirrorOffsets) belongs to a later generation.
const (
	KeyCreateClusterMirror    int16 = 94
	KeyStartMirrorTopics      int16 = 95
	KeyStopMirrorTopics       int16 = 96
	KeyListClusterMirrors     int16 = 98
	KeyDescribeClusterMirrors int16 = 99
	KeyReadMirrorStates       int16 = 100
	KeyWriteMirrorStates      int16 = 101
	KeyPauseMirrorTopics      int16 = 102
	KeyResumeMirrorTopics     int16 = 103
	KeyDeleteClusterMirror    int16 = 104
	KeyBumpLeaderEpochs       int16 = 105
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
	{KeyCreateClusterMirror, "CreateClusterMirror", 0, 0, newMessage[CreateClusterMirrorRequest], newMessage[CreateClusterMirrorResponse]},
	{KeyStartMirrorTopics, "StartMirrorTopics", 0, 0, newMessage[StartMirrorTopicsRequest], newMessage[StartMirrorTopicsResponse]},
	{KeyStopMirrorTopics, "StopMirrorTopics", 0, 0, newMessage[StopMirrorTopicsRequest], newMessage[StopMirrorTopicsResponse]},
	{KeyListClusterMirrors, "ListClusterMirrors", 0, 0, newMessage[ListClusterMirrorsRequest], newMessage[ListClusterMirrorsResponse]},
	{
		KeyDescribeClusterMirrors, "DescribeClusterMirrors", 0, 0,
		newMessage[DescribeClusterMirrorsRequest], newMessage[DescribeClusterMirrorsResponse],
	},
	{KeyReadMirrorStates, "ReadMirrorStates", 0, 0, newMessage[ReadMirrorStatesRequest], newMessage[ReadMirrorStatesResponse]},
	{KeyWriteMirrorStates, "WriteMirrorStates", 0, 0, newMessage[WriteMirrorStatesRequest], newMessage[WriteMirrorStatesResponse]},
	{KeyPauseMirrorTopics, "PauseMirrorTopics", 0, 0, newMessage[PauseMirrorTopicsRequest], newMessage[PauseMirrorTopicsResponse]},
	{KeyResumeMirrorTopics, "ResumeMirrorTopics", 0, 0, newMessage[ResumeMirrorTopicsRequest], newMessage[ResumeMirrorTopicsResponse]},
	{KeyDeleteClusterMirror, "DeleteClusterMirror", 0, 0, newMessage[DeleteClusterMirrorRequest], newMessage[DeleteClusterMirrorResponse]},
	{KeyBumpLeaderEpochs, "BumpLeaderEpochs", 0, 0, newMessage[BumpLeaderEpochsRequest], newMessage[BumpLeaderEpochsResponse]},
	{KeyRecoverMirrorTopics, "RecoverMirrorTopics", 0, 0, newMessage[RecoverMirrorTopicsRequest], newMessage[RecoverMirrorTopicsResponse]},
	{KeyKmirrorCall, "KmirrorCall", 0, 0, newMessage[KmirrorCallRequest], newMessage[KmirrorCallResponse]},
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
