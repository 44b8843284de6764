// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"slices"
)

// addressSlice is what one CREMEndpointSlice holds.
type addressSlice struct {
	name      string
	addresses []string // sorted
}

// assignment is how the slices of a profile must change. Writes come first, those that add before those that only take away, then removals:
// an address that moves is never missing in between.
type assignment struct {
	write  []addressSlice
	remove []string
}

// assign spreads addresses over slices of at most most. An address stays where it is, so that one pod costs one write; new ones fill slices that change anyway, then those
// with room, then new slices. When more than twice the slices exist that are needed, the smallest are emptied into others.
func assign(have []addressSlice, want []string, most int, newName func() string) assignment {
	work := newSliceWork(have, want)
	work.fill(most, newName)
	work.consolidate(most)
	return work.result()
}

// sliceWork is the state of one assignment.
type sliceWork struct {
	slices []*workSlice
	rest   []string // wanted and in no slice yet
	total  int
}

type workSlice struct {
	name         string
	kept, added  []string
	isNew, fewer bool
}

func (s *workSlice) size() int { return len(s.kept) + len(s.added) }

func newSliceWork(have []addressSlice, want []string) *sliceWork {
	w := &sliceWork{total: len(want)}
	missing := make(map[string]bool, len(want))
	for _, a := range want {
		missing[a] = true
	}
	for _, one := range have {
		s := &workSlice{name: one.name}
		for _, a := range one.addresses {
			if missing[a] {
				delete(missing, a)
				s.kept = append(s.kept, a)
			}
		}
		s.fewer = len(s.kept) < len(one.addresses)
		w.slices = append(w.slices, s)
	}
	for a := range missing {
		w.rest = append(w.rest, a)
	}
	slices.Sort(w.rest)
	return w
}

// fill puts the rest into slices.
func (w *sliceWork) fill(most int, newName func() string) {
	order := slices.Clone(w.slices)
	slices.SortStableFunc(order, func(a, b *workSlice) int {
		return cmp.Or(cmp.Compare(number(!a.fewer), number(!b.fewer)), cmp.Compare(b.size(), a.size()), cmp.Compare(a.name, b.name))
	})
	// One slice that has room for all the rest is better than several.
	if i := slices.IndexFunc(order, func(s *workSlice) bool { return s.size()+len(w.rest) <= most && s.size() > 0 }); i > 0 {
		order[0], order[i] = order[i], order[0]
	}
	for len(w.rest) > 0 {
		if len(order) == 0 {
			s := &workSlice{name: newName(), isNew: true}
			w.slices, order = append(w.slices, s), append(order, s)
		}
		s := order[0]
		n := min(most-s.size(), len(w.rest))
		s.added, w.rest = append(s.added, w.rest[:n]...), w.rest[n:]
		order = order[1:]
	}
}

// consolidate empties the smallest slices into others when there are far too many.
func (w *sliceWork) consolidate(most int) {
	needed := (w.total + most - 1) / most
	used := slices.DeleteFunc(slices.Clone(w.slices), func(s *workSlice) bool { return s.size() == 0 })
	if len(used) <= 2*needed {
		return
	}
	slices.SortFunc(used, func(a, b *workSlice) int { return cmp.Or(cmp.Compare(a.size(), b.size()), cmp.Compare(a.name, b.name)) })
	for len(used) > needed {
		from := used[0]
		for i := len(used) - 1; i > 0 && from.size() > 0; i-- {
			all := slices.Concat(from.kept, from.added)
			n := min(most-used[i].size(), len(all))
			used[i].added = append(used[i].added, all[:n]...)
			from.kept, from.added, from.fewer = all[n:], nil, true
		}
		used = used[1:]
	}
}

func (w *sliceWork) result() assignment {
	var out assignment
	var fewer []addressSlice
	for _, s := range w.slices {
		one := addressSlice{name: s.name, addresses: slices.Sorted(slices.Values(slices.Concat(s.kept, s.added)))}
		switch {
		case s.size() == 0:
			if !s.isNew {
				out.remove = append(out.remove, s.name)
			}
		case len(s.added) > 0:
			out.write = append(out.write, one)
		case s.fewer:
			fewer = append(fewer, one)
		}
	}
	out.write = append(out.write, fewer...)
	return out
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
