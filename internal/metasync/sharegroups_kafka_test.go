package metasync

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// alter sets a share group's start offset of partition 0 as an admin client.
func (b *bed) alter(t *testing.T, adm *kadm.Client, group, topic string, offset int64) {
	t.Helper()
	os := kadm.Offsets{}
	os.AddOffset(topic, 0, offset, -1)
	var failed error
	eventually(t, "share group "+group+" altered", func() bool { // its coordinator may still load
		r, err := adm.AlterShareGroupOffsets(t.Context(), group, os)
		if failed = err; err == nil {
			failed = r.Error()
		}
		return failed == nil || !kerr.IsRetriable(failed)
	})
	check(t, failed)
}

// start returns a share group's start offset of partition 0, -1 when it has none.
func (b *bed) start(t *testing.T, adm *kadm.Client, group, topic string) int64 {
	t.Helper()
	var d kadm.DescribedShareGroupsOffsets
	var err error
	eventually(t, "share group "+group+" described", func() bool { // as in alter
		d, err = adm.DescribeShareGroupOffsets(t.Context(), group)
		return !kerr.IsRetriable(errors.Join(err, d[group].Err))
	})
	check(t, err)
	o, ok := d[group].Offsets.Lookup(topic, 0)
	if !ok {
		return -1
	}
	check(t, o.Err)
	return o.StartOffset
}

// fromStart has a share group begin at the start of the log.
func (b *bed) fromStart(t *testing.T, cl *kgo.Client, group string) {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value = "share.auto.offset.reset", kmsg.StringPtr("earliest")
	r.Configs = append(r.Configs, c)
	req.Resources = append(req.Resources, r)
	_, err := req.RequestWith(t.Context(), cl)
	check(t, err)
}

// shares is a round of share groups without an error.
func (b *bed) shares(t *testing.T, prefix string) map[string]int {
	t.Helper()
	counts, err := b.round(t, prefix, (*job).shareGroups)
	check(t, err)
	return counts
}

// work reads records as a member of a share group and accepts them.
func (r *reader) work(t *testing.T, n int) []*kgo.Record {
	t.Helper()
	got := r.read(t, n)
	for _, rec := range got {
		rec.Ack(kgo.AckAccept)
	}
	check(t, r.cl.FlushAcks(t.Context()))
	return got
}

func shareMember(group string) []kgo.Opt {
	return []kgo.Opt{kgo.ShareGroup(group), kgo.ShareMaxRecords(5), kgo.ShareMaxRecordsStrict()}
}

func testShareGroup(t *testing.T, b *bed) {
	b.topic(t, "queue", 1, 20, 20)
	b.fromStart(t, b.srcCl, "queue-app")
	r := b.member(t, b.src, "queue", shareMember("queue-app")...)
	for range 2 {
		r.work(t, 5)
	}
	// The source tells where it was before the last acknowledgement (fact 40 of docs/kafka-facts.md).
	eventually(t, "acknowledged at the source", func() bool { return b.start(t, b.srcAdm, "queue-app", "queue") == 5 })
	r.leave()
	expectCounts(t, b.shares(t, "queue"), map[string]int{"changed share_groups": 1})
	expect(t, "start offset", b.start(t, b.dstAdm, "queue-app", "queue"), 5)
	expectCounts(t, b.shares(t, "queue"), map[string]int{})
	expectCounts(t, b.sync(t, "queue"), map[string]int{}) // not as a consumer group, too
	r = b.member(t, b.dst, "queue", shareMember("queue-app")...)
	expect(t, "goes on at", r.work(t, 5)[0].Offset, 5)
	r.leave()
	b.alter(t, b.srcAdm, "queue-app", "queue", 4)
	expectCounts(t, b.shares(t, "queue"), map[string]int{"changed share_groups": 1})
	r = b.member(t, b.dst, "queue", shareMember("queue-app")...)
	expect(t, "set back to", r.work(t, 5)[0].Offset, 4)
	r.leave()
}

func testClampedShareGroup(t *testing.T, b *bed) {
	b.topic(t, "short", 1, 20, 10)
	b.alter(t, b.srcAdm, "short-app", "short", 15)
	b.alter(t, b.dstAdm, "short-alone", "short", 17)
	expectCounts(t, b.shares(t, "short"), map[string]int{"changed share_groups": 2})
	expect(t, "above the end", b.start(t, b.dstAdm, "short-app", "short"), 10)
	expect(t, "not at the source", b.start(t, b.dstAdm, "short-alone", "short"), 10)
	produce(t, b.dstCl, "short", 0, 10)
	expectCounts(t, b.shares(t, "short"), map[string]int{"changed share_groups": 1})
	expect(t, "reached", b.start(t, b.dstAdm, "short-app", "short"), 15)
}

func testActiveShareGroup(t *testing.T, b *bed) {
	b.topic(t, "busy", 1, 20, 20)
	b.alter(t, b.srcAdm, "busy-app", "busy", 3)
	b.alter(t, b.dstAdm, "busy-app", "busy", 8)
	var r *reader
	b.w.groups.beforeWrite = func(string) {
		r = b.member(t, b.dst, "busy", shareMember("busy-app")...)
		r.read(t, 1)
	}
	expectCounts(t, b.shares(t, "busy"), map[string]int{"skipped share_groups active": 1}) // by the coordinator
	b.w.groups.beforeWrite = nil
	expectCounts(t, b.shares(t, "busy"), map[string]int{"skipped share_groups active": 1}) // by the list
	expect(t, "own offset", b.start(t, b.dstAdm, "busy-app", "busy"), 8)
	r.leave()
	expectCounts(t, b.shares(t, "busy"), map[string]int{"changed share_groups": 1})
}
