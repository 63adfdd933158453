package protocol

import "github.com/twmb/franz-go/pkg/kmsg"

// APIRole says what becomes of a request on a broker listener.
type APIRole uint8

// Roles.
const (
	// Hidden: between brokers and controllers only; never advertised.
	Hidden APIRole = iota
	// Local: read and answered, or changed, by us. Advertised is the overlap of our range and the broker's.
	Local
	// Relay: passed on as bytes. Advertised is the broker's range.
	Relay
)

// API is one row of the registry.
type API struct {
	Key  int16
	Name string
	// Min and Max are the versions we can decode. For Relay they bound nothing.
	Min, Max int16
	Role     APIRole
	// InterBroker: advertised on inter-broker listeners only.
	InterBroker bool
	// Read: a Relay whose bytes are looked into on their way, so that it is advertised as a Local is.
	Read bool
}

// APIs returns the registry in the order of keys. The slice is the caller's.
func APIs() []API { return append([]API(nil), apis...) }

// LookupAPI returns the row of a key.
func LookupAPI(key int16) (API, bool) {
	if key < 0 || int(key) >= len(apis) {
		return API{}, false
	}
	return apis[key], true
}

// CheckIdentity compares the cluster id and node id that ApiVersions v5 carries (KIP-1242) with ours and returns the
// error code to answer with: 0, INVALID_REQUEST (42) when only one of them is set, REBOOTSTRAP_REQUIRED (129) when
// the client meant another broker.
func CheckIdentity(req *kmsg.ApiVersionsRequest, clusterID string, nodeID int32) int16 {
	if req.Version < 5 {
		return 0
	}
	if (req.ClusterID == nil) != (req.NodeID == -1) {
		return 42
	}
	if req.ClusterID != nil && (*req.ClusterID != clusterID || req.NodeID != nodeID) {
		return 129
	}
	return 0
}

// ApiVersions builds the answer to an ApiVersions request of version req from what the broker behind us advertises.
func ApiVersions(req int16, broker []kmsg.ApiVersionsResponseApiKey, interBroker bool) *kmsg.ApiVersionsResponse {
	resp := kmsg.NewPtrApiVersionsResponse()
	self := apis[keyApiVersions]
	if req < self.Min || req > self.Max {
		resp.ErrorCode = 35
		resp.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: self.Key, MinVersion: self.Min, MaxVersion: self.Max}}
		return resp
	}
	resp.Version = req
	for _, k := range broker {
		api, ok := LookupAPI(k.ApiKey)
		if !ok || api.Role == Hidden || api.InterBroker && !interBroker {
			continue
		}
		k := kmsg.ApiVersionsResponseApiKey{ApiKey: k.ApiKey, MinVersion: k.MinVersion, MaxVersion: k.MaxVersion}
		if api.Role == Local || api.Read {
			k.MinVersion, k.MaxVersion = max(k.MinVersion, api.Min), min(k.MaxVersion, api.Max)
		}
		if k.MinVersion <= k.MaxVersion {
			resp.ApiKeys = append(resp.ApiKeys, k)
		}
	}
	return resp
}
