package mirror

import (
	"cmp"
	"slices"

	"kmirror/protocol/kraft"
)

// placeable returns the live real brokers that may be given replicas, those with the fewest first.
func (m *Manager) placeable(img *kraft.Image) []int32 {
	load := map[int32]int{}
	for _, t := range img.Topics {
		for _, p := range t.Partitions {
			for _, b := range p.Replicas {
				load[b]++
			}
		}
	}
	var ids []int32
	for id, b := range img.Brokers {
		cordoned := len(b.LogDirs) > 0 && len(b.CordonedLogDirs) >= len(b.LogDirs)
		if !m.guest(id) && !b.Fenced && !b.InControlledShutdown && !cordoned {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int32) int { return cmp.Or(cmp.Compare(load[a], load[b]), cmp.Compare(a, b)) })
	return ids
}

// spread orders brokers so that neighbours are in different racks as far as there are several.
func spread(ids []int32, rack func(int32) string) []int32 {
	byRack := map[string][]int32{}
	var racks []string
	for _, id := range ids {
		r := rack(id)
		if byRack[r] == nil {
			racks = append(racks, r)
		}
		byRack[r] = append(byRack[r], id)
	}
	out := make([]int32, 0, len(ids))
	for len(out) < len(ids) {
		for _, r := range racks {
			if len(byRack[r]) > 0 {
				out = append(out, byRack[r][0])
				byRack[r] = byRack[r][1:]
			}
		}
	}
	return out
}

// place makes the replica lists of a new topic: our ids first, the leading one alternating, then rf real brokers.
func (m *Manager) place(img *kraft.Image, partitions int32, rf int) [][]int32 {
	brokers := spread(m.placeable(img), func(id int32) string { return img.Brokers[id].Rack })
	out := make([][]int32, partitions)
	n := len(m.cfg.NodeIDs)
	for p := range out {
		for i := range n {
			out[p] = append(out[p], m.cfg.NodeIDs[(p+i)%n])
		}
		for i := range min(rf, len(brokers)) {
			out[p] = append(out[p], brokers[(p+i)%len(brokers)])
		}
	}
	return out
}
