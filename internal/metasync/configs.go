package metasync

import "context"

func (j *job) configs(ctx context.Context) error { return nil }
