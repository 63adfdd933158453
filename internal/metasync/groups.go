package metasync

import "context"

func (j *job) groups(ctx context.Context) error { return nil }
