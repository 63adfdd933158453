package metasync

import "context"

func (j *job) shareGroups(ctx context.Context) error { return nil }
