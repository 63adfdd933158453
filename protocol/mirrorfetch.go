package protocol

import (
	"bytes"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// MirrorFetchVersion is the version of Fetch in which KIP-1279's drafts have brokers exchange a MirrorLeaderEpoch: the layout of
// version 18, and tagged fields of partitions (request 2, response 3). The final KIP dropped it, so that Kafka may give the number to
// something else: it is never advertised, and understood on inter-broker listeners only, where brokers don't ask before they use it.
const MirrorFetchVersion = 19

const keyFetch = 1

// DecodeMirrorFetch decodes the body of a Fetch request in MirrorFetchVersion. A body that is not encoded again to the same bytes is of
// some other version 19, and ErrUnsupported.
func DecodeMirrorFetch(body []byte) (*kmsg.FetchRequest, error) {
	req := kmsg.NewPtrFetchRequest()
	req.Version = MirrorFetchVersion
	if err := req.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("request Fetch v%d: %w (%w)", MirrorFetchVersion, ErrShort, err)
	}
	if !bytes.Equal(req.AppendTo(nil), body) {
		return nil, fmt.Errorf("request Fetch v%d with other fields than those of KIP-1279: %w", MirrorFetchVersion, ErrUnsupported)
	}
	return req, nil
}
