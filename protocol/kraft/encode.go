package kraft

import (
	"github.com/twmb/franz-go/pkg/kbin"

	"kmirror/protocol"
)

// AppendRecord appends a record's value as DecodeRecord reads it. Fields that the record's version lacks are left
// out, tags with default values too. It serves tests and tools: kmirror never writes the metadata log.
func AppendRecord(dst []byte, rec Record) []byte {
	e := encoder{dst}
	e.uvarint(1)
	e.uvarint(uint32(rec.Type()))
	e.uvarint(uint32(rec.Ver()))
	var t tagSet
	switch r := rec.(type) {
	case *RegisterBrokerRecord:
		e.registerBroker(r, &t)
	case *PartitionRecord:
		e.partition(r, &t)
	case *PartitionChangeRecord:
		e.partitionChange(r, &t)
	case *BrokerRegistrationChangeRecord:
		e.registrationChange(r, &t)
	case *BeginTransactionRecord:
		t.str(0, r.Name)
	case *AbortTransactionRecord:
		t.str(0, r.Reason)
	default:
		e.plain(rec)
	}
	e.uvarint(uint32(t.n))
	return append(e.b, t.b...)
}

func (e *encoder) plain(rec Record) {
	switch r := rec.(type) {
	case *UnregisterBrokerRecord:
		e.i32(r.BrokerID)
		e.i64(r.Epoch)
	case *TopicRecord:
		e.str(r.Name)
		e.uuid(r.ID)
	case *ConfigRecord:
		e.i8(r.Resource.Type)
		e.str(r.Resource.Name)
		e.str(r.Name)
		e.b = kbin.AppendCompactNullableString(e.b, r.Value)
	case *FenceBrokerRecord:
		e.i32(r.BrokerID)
		e.i64(r.Epoch)
	case *UnfenceBrokerRecord:
		e.i32(r.BrokerID)
		e.i64(r.Epoch)
	case *RemoveTopicRecord:
		e.uuid(r.ID)
	case *FeatureLevelRecord:
		e.str(r.Name)
		e.i16(r.Level)
	case *ClearElrRecord:
		e.str(r.Topic)
	}
}

func (e *encoder) registerBroker(r *RegisterBrokerRecord, t *tagSet) {
	e.i32(r.BrokerID)
	if r.Version >= 2 {
		e.bool(r.MigratingZk)
	}
	e.uuid(r.Incarnation)
	e.i64(r.Epoch)
	e.uvarint(uint32(len(r.Endpoints)) + 1)
	for _, p := range r.Endpoints {
		e.str(p.Name)
		e.str(p.Host)
		e.i16(int16(p.Port))
		e.i16(p.SecurityProtocol)
		e.uvarint(0)
	}
	e.uvarint(uint32(len(r.Features)) + 1)
	for _, f := range r.Features {
		e.str(f.Name)
		e.i16(f.Min)
		e.i16(f.Max)
		e.uvarint(0)
	}
	e.b = kbin.AppendCompactNullableString(e.b, r.Rack)
	e.bool(r.Fenced)
	if r.Version >= 1 {
		e.bool(r.InControlledShutdown)
	}
	if r.Version >= 3 && len(r.LogDirs) > 0 {
		t.uuids(0, r.LogDirs)
	}
	if r.Version >= 4 {
		t.uuids(1, r.CordonedLogDirs)
	}
}

func (e *encoder) partition(r *PartitionRecord, t *tagSet) {
	e.i32(r.PartitionID)
	e.uuid(r.TopicID)
	for _, l := range [][]int32{r.Replicas, r.ISR, r.Removing, r.Adding} {
		e.ints(l)
	}
	e.i32(r.Leader)
	e.i32(r.LeaderEpoch)
	e.i32(r.PartitionEpoch)
	if r.Version >= 1 {
		e.uuids(r.Directories)
	}
	if r.LeaderRecoveryState != 0 {
		t.i8(0, r.LeaderRecoveryState)
	}
	if r.Version >= 2 {
		t.ints(1, r.ELR)
		t.ints(2, r.LastKnownELR)
	}
}

func (e *encoder) partitionChange(r *PartitionChangeRecord, t *tagSet) {
	e.i32(r.PartitionID)
	e.uuid(r.TopicID)
	t.ints(0, r.ISR)
	if r.Leader != NoLeaderChange {
		var v encoder
		v.i32(r.Leader)
		t.add(1, v.b)
	}
	t.ints(2, r.Replicas)
	t.ints(3, r.Removing)
	t.ints(4, r.Adding)
	if r.LeaderRecoveryState != -1 {
		t.i8(5, r.LeaderRecoveryState)
	}
	if r.Version >= 2 {
		t.ints(6, r.ELR)
		t.ints(7, r.LastKnownELR)
	}
	if r.Version >= 1 {
		t.uuids(8, r.Directories)
	}
}

func (e *encoder) registrationChange(r *BrokerRegistrationChangeRecord, t *tagSet) {
	e.i32(r.BrokerID)
	e.i64(r.Epoch)
	if r.Fenced != 0 {
		t.i8(0, r.Fenced)
	}
	if r.Version >= 1 && r.InControlledShutdown != 0 {
		t.i8(1, r.InControlledShutdown)
	}
	if r.Version >= 2 && len(r.LogDirs) > 0 {
		t.uuids(2, r.LogDirs)
	}
	if r.Version >= 3 {
		t.uuids(3, r.CordonedLogDirs)
	}
}

type encoder struct{ b []byte }

func (e *encoder) uvarint(v uint32) { e.b = kbin.AppendUvarint(e.b, v) }
func (e *encoder) i8(v int8)        { e.b = kbin.AppendInt8(e.b, v) }
func (e *encoder) i16(v int16)      { e.b = kbin.AppendInt16(e.b, v) }
func (e *encoder) i32(v int32)      { e.b = kbin.AppendInt32(e.b, v) }
func (e *encoder) i64(v int64)      { e.b = kbin.AppendInt64(e.b, v) }
func (e *encoder) bool(v bool)      { e.b = kbin.AppendBool(e.b, v) }
func (e *encoder) str(s string)     { e.b = kbin.AppendCompactString(e.b, s) }

func (e *encoder) uuid(u protocol.UUID) { e.b = append(e.b, u[:]...) }

func (e *encoder) ints(l []int32) {
	e.uvarint(uint32(len(l)) + 1)
	for _, v := range l {
		e.i32(v)
	}
}

func (e *encoder) uuids(l []protocol.UUID) {
	e.uvarint(uint32(len(l)) + 1)
	for _, v := range l {
		e.uuid(v)
	}
}

// tagSet gathers tagged fields, which must be added in ascending order. Null arrays and strings are defaults.
type tagSet struct {
	n int
	b []byte
}

func (t *tagSet) add(tag uint32, v []byte) {
	t.n++
	t.b = kbin.AppendUvarint(t.b, tag)
	t.b = kbin.AppendUvarint(t.b, uint32(len(v)))
	t.b = append(t.b, v...)
}

func (t *tagSet) i8(tag uint32, v int8) { t.add(tag, []byte{byte(v)}) }

func (t *tagSet) str(tag uint32, s *string) {
	if s != nil {
		t.add(tag, kbin.AppendCompactString(nil, *s))
	}
}

func (t *tagSet) ints(tag uint32, l []int32) {
	if l != nil {
		var v encoder
		v.ints(l)
		t.add(tag, v.b)
	}
}

func (t *tagSet) uuids(tag uint32, l []protocol.UUID) {
	if l != nil {
		var v encoder
		v.uuids(l)
		t.add(tag, v.b)
	}
}
