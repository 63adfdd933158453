package kraft

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kbin"

	"kmirror/protocol"
)

// maxVersions holds the newest schema known of each type: Kafka 4.4.0's.
var maxVersions = map[int]int{
	TypeRegisterBroker: 4, TypeUnregisterBroker: 0, TypeTopic: 0, TypePartition: 2, TypeConfig: 0, TypePartitionChange: 2,
	TypeFenceBroker: 0, TypeUnfenceBroker: 0, TypeRemoveTopic: 0, TypeFeatureLevel: 0, TypeBrokerRegistrationChange: 3,
	TypeNoOp: 0, TypeBeginTransaction: 0, TypeEndTransaction: 0, TypeAbortTransaction: 0, TypeClearElr: 0,
}

// DecodeRecord decodes the value of a metadata log record: frame version, type, version, body (MetadataRecordSerde).
// Types that the image does not need, and types of later Kafka versions, are nil without an error; unknown tagged
// fields are skipped. A known type in a version above ours is an error: its fields may stand elsewhere. Errors wrap
// ErrRecord.
func DecodeRecord(value []byte) (Record, error) {
	d := newDecoder(value)
	frame, typ, ver := d.Uvarint(), d.Uvarint(), d.Uvarint()
	switch {
	case !d.Ok():
		return nil, fmt.Errorf("%w: %d bytes are no header", ErrRecord, len(value))
	case frame != 1:
		return nil, fmt.Errorf("%w: frame version %d, want 1", ErrRecord, frame)
	}
	newest, known := maxVersions[int(typ)]
	if !known {
		return nil, nil
	}
	if int64(ver) > int64(newest) {
		return nil, fmt.Errorf("%w: type %d version %d, newest known is %d", ErrRecord, typ, ver, newest)
	}
	rec := d.record(int(typ), int(ver))
	if err := d.Complete(); err != nil {
		return nil, fmt.Errorf("%w: type %d version %d: %w", ErrRecord, typ, ver, err)
	}
	if len(d.Src) > 0 {
		return nil, fmt.Errorf("%w: type %d version %d: %d bytes left over", ErrRecord, typ, ver, len(d.Src))
	}
	return rec, nil
}

func (d *decoder) record(typ, ver int) Record {
	switch typ {
	case TypeRegisterBroker:
		return d.registerBroker(ver)
	case TypePartition:
		return d.partition(ver)
	case TypePartitionChange:
		return d.partitionChange(ver)
	case TypeBrokerRegistrationChange:
		return d.registrationChange(ver)
	case TypeBeginTransaction:
		r := new(BeginTransactionRecord)
		d.tags(func(tag uint32, t *decoder) bool { return tag == 0 && t.str(&r.Name) })
		return r
	case TypeAbortTransaction:
		r := new(AbortTransactionRecord)
		d.tags(func(tag uint32, t *decoder) bool { return tag == 0 && t.str(&r.Reason) })
		return r
	}
	r := d.plain(typ)
	d.tags(nil)
	return r
}

// plain decodes the types that have one version and no tagged fields.
func (d *decoder) plain(typ int) Record {
	switch typ {
	case TypeUnregisterBroker:
		return &UnregisterBrokerRecord{d.Int32(), d.Int64()}
	case TypeTopic:
		return &TopicRecord{d.CompactString(), d.Uuid()}
	case TypeConfig:
		return &ConfigRecord{ConfigResource{d.Int8(), d.CompactString()}, d.CompactString(), d.CompactNullableString()}
	case TypeFenceBroker:
		return &FenceBrokerRecord{d.Int32(), d.Int64()}
	case TypeUnfenceBroker:
		return &UnfenceBrokerRecord{d.Int32(), d.Int64()}
	case TypeRemoveTopic:
		return &RemoveTopicRecord{d.Uuid()}
	case TypeFeatureLevel:
		return &FeatureLevelRecord{d.CompactString(), d.Int16()}
	case TypeEndTransaction:
		return &EndTransactionRecord{}
	case TypeClearElr:
		return &ClearElrRecord{d.CompactString()}
	}
	return &NoOpRecord{}
}

func (d *decoder) registerBroker(ver int) Record {
	r := &RegisterBrokerRecord{Version: ver, BrokerID: d.Int32()}
	if ver >= 2 {
		r.MigratingZk = d.Bool()
	}
	r.Incarnation, r.Epoch = d.Uuid(), d.Int64()
	for n := d.CompactArrayLen(); n > 0 && d.Ok(); n-- {
		r.Endpoints = append(r.Endpoints, Endpoint{d.CompactString(), d.CompactString(), d.Uint16(), d.Int16()})
		d.tags(nil)
	}
	for n := d.CompactArrayLen(); n > 0 && d.Ok(); n-- {
		r.Features = append(r.Features, FeatureRange{d.CompactString(), d.Int16(), d.Int16()})
		d.tags(nil)
	}
	r.Rack, r.Fenced = d.CompactNullableString(), d.Bool()
	if ver >= 1 {
		r.InControlledShutdown = d.Bool()
	}
	d.tags(func(tag uint32, t *decoder) bool {
		switch {
		case tag == 0 && ver >= 3:
			r.LogDirs = t.uuids()
		case tag == 1 && ver >= 4:
			r.CordonedLogDirs = t.uuids()
		default:
			return false
		}
		return true
	})
	return r
}

func (d *decoder) partition(ver int) Record {
	r := &PartitionRecord{Version: ver, PartitionID: d.Int32(), TopicID: d.Uuid()}
	r.Replicas, r.ISR, r.Removing, r.Adding = d.ints(), d.ints(), d.ints(), d.ints()
	r.Leader, r.LeaderEpoch, r.PartitionEpoch = d.Int32(), d.Int32(), d.Int32()
	if ver >= 1 {
		r.Directories = d.uuids()
	}
	d.tags(func(tag uint32, t *decoder) bool {
		switch {
		case tag == 0:
			r.LeaderRecoveryState = t.Int8()
		case tag == 1 && ver >= 2:
			r.ELR = t.ints()
		case tag == 2 && ver >= 2:
			r.LastKnownELR = t.ints()
		default:
			return false
		}
		return true
	})
	return r
}

func (d *decoder) partitionChange(ver int) Record {
	r := &PartitionChangeRecord{Version: ver, PartitionID: d.Int32(), TopicID: d.Uuid(), Leader: NoLeaderChange,
		LeaderRecoveryState: -1}
	lists := map[uint32]*[]int32{0: &r.ISR, 2: &r.Replicas, 3: &r.Removing, 4: &r.Adding}
	if ver >= 2 {
		lists[6], lists[7] = &r.ELR, &r.LastKnownELR
	}
	d.tags(func(tag uint32, t *decoder) bool {
		switch {
		case lists[tag] != nil:
			*lists[tag] = t.ints()
		case tag == 1:
			r.Leader = t.Int32()
		case tag == 5:
			r.LeaderRecoveryState = t.Int8()
		case tag == 8 && ver >= 1:
			r.Directories = t.uuids()
		default:
			return false
		}
		return true
	})
	return r
}

func (d *decoder) registrationChange(ver int) Record {
	r := &BrokerRegistrationChangeRecord{Version: ver, BrokerID: d.Int32(), Epoch: d.Int64()}
	d.tags(func(tag uint32, t *decoder) bool {
		switch {
		case tag == 0:
			r.Fenced = t.Int8()
		case tag == 1 && ver >= 1:
			r.InControlledShutdown = t.Int8()
		case tag == 2 && ver >= 2:
			r.LogDirs = t.uuids()
		case tag == 3 && ver >= 3:
			r.CordonedLogDirs = t.uuids()
		default:
			return false
		}
		return true
	})
	return r
}

// decoder adds what metadata records need to the sticky reader.
type decoder struct{ kbin.Reader }

func newDecoder(src []byte) decoder { return decoder{kbin.Reader{Src: src}} }

// fail makes the reader bad, as a short read does.
func (d *decoder) fail() { d.Span(len(d.Src) + 1) }

// tags reads a tag section. known decodes the tag's bytes and reports whether it is one of the record's; a known tag
// must use up its bytes. nil skips all.
func (d *decoder) tags(known func(tag uint32, t *decoder) bool) {
	for n := d.Uvarint(); n > 0 && d.Ok(); n-- {
		tag, size := d.Uvarint(), d.Uvarint()
		t := newDecoder(d.Span(int(size)))
		if known != nil && d.Ok() && known(tag, &t) && (!t.Ok() || len(t.Src) > 0) {
			d.fail()
		}
	}
}

// str reads a nullable string and returns true.
func (d *decoder) str(s **string) bool {
	*s = d.CompactNullableString()
	return true
}

// ints reads a nullable array; null is nil, an empty one is not.
func (d *decoder) ints() []int32 {
	n := d.arrayLen(4)
	if n < 0 {
		return nil
	}
	out := make([]int32, n)
	for i := range out {
		out[i] = d.Int32()
	}
	return out
}

func (d *decoder) uuids() []protocol.UUID {
	n := d.arrayLen(16)
	if n < 0 {
		return nil
	}
	out := make([]protocol.UUID, n)
	for i := range out {
		out[i] = d.Uuid()
	}
	return out
}

// arrayLen reads the length of an array of elements of a fixed size, -1 for null, and refuses one that can't be there.
func (d *decoder) arrayLen(size int) int {
	n := int64(d.Uvarint()) - 1
	if n*int64(size) > int64(len(d.Src)) {
		d.fail()
	}
	if !d.Ok() {
		return -1
	}
	return int(n)
}
