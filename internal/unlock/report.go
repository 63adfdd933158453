package unlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// results looks once more and says what became of each topic.
func (u *Unlocker) results(ctx context.Context) ([]Result, error) {
	seen, err := u.look(ctx)
	if err != nil {
		return nil, err
	}
	var out []Result
	for _, k := range u.work {
		r := Result{TopicPlan: k.plan, Waiting: k.waiting}
		switch t := seen[k.plan.Topic]; {
		case k.err != nil:
			r.Error = k.err.Error()
		case t == nil:
			r.Waiting = nil
		default:
			r.Unlocked = u.unlocked(k, t)
			r.MinISRLeft = r.Unlocked && !k.restored(t)
			if !r.Unlocked && len(r.Waiting) == 0 {
				r.Waiting = append(r.Waiting, fmt.Sprintf("somebody changes the topic: %s=%q, %s=%q, replicas %s; is a kmirror running?",
					sizeConfig, t.size, minISRConfig, t.minISR, describe(t)))
			}
		}
		r.GivenUp = u.givenUp(k)
		if r.Waiting == nil {
			r.Waiting = []string{}
		}
		out = append(out, r)
	}
	return out, nil
}

// restored reports whether min.insync.replicas has its true value.
func (k *task) restored(t *topic) bool { return !k.minISR || t.minISR == k.trueMinISR }

// unlocked reports whether nothing of the lock is left that keeps anybody from writing.
func (u *Unlocker) unlocked(k *task, t *topic) bool {
	several := slices.ContainsFunc(t.parts, func(p partition) bool { return !u.cluster.alone(p) })
	return t.size != "0" && (k.restored(t) || !several) && !slices.ContainsFunc(t.parts, func(p partition) bool {
		return p.leader < 0 || u.cluster.hasGuest(p.replicas)
	})
}

func describe(t *topic) string {
	var b strings.Builder
	for _, p := range t.parts {
		fmt.Fprint(&b, p.replicas)
	}
	return b.String()
}

// givenUp says what an orderly failover would have kept or cleaned up. A topic that carried no lock was no mirror: it gives up
// nothing.
func (u *Unlocker) givenUp(k *task) []string {
	out := []string{}
	if len(k.plan.Restores) == 0 {
		return out
	}
	if k.plan.Guessed != "" {
		out = append(out, fmt.Sprintf("the true values of %s and %s are not known (%s): both were removed, so that the brokers' defaults "+
			"hold; set again what the topic had", sizeConfig, minISRConfig, k.plan.Guessed))
	}
	out = append(out, "what the source had and no in-sync real broker held is not here; without the source nobody knows how much "+
		"that is")
	hanging := fmt.Sprintf("kafka-transactions.sh --bootstrap-server %s find-hanging --topic %s", u.cfg.Bootstrap, k.plan.Topic)
	switch n := len(k.plan.OpenTransactions); {
	case n > 0:
		out = append(out, fmt.Sprintf("%d open transactions of the source: no coordinator of this cluster knows them, so they never "+
			"end; consumers with isolation.level=read_committed stop before the first of each partition until it is aborted by hand "+
			"(see the commands)", n))
	case k.plan.ProducerIDs < 0 || !k.size:
		out = append(out, "open transactions of the source, if there are any, never end by themselves; an earlier run "+
			"printed them, or: "+hanging)
	}
	if k.plan.ProducerIDs != 0 {
		ids := fmt.Sprintf("%d producer ids", k.plan.ProducerIDs)
		if k.plan.ProducerIDs < 0 {
			ids = "an unknown number of producer ids"
		}
		out = append(out, ids+" of the source are remembered: until producer.id.expiration.ms is over (1 day by default) an idempotent "+
			"producer of this cluster that happens to have one of them may be refused (OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH), or have "+
			"a record acknowledged as a duplicate and not written")
	}
	return append(out, "the last mirrored epoch is not recorded: mirroring this topic again, in either direction, needs kmirror start "+
		"--overwrite")
}
