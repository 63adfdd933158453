package kraft

// Empty returns the image before the first record.
func Empty() *Image { panic("soon") }

// Apply soon.
func (i *Image) Apply(offset int64, epoch int32, values [][]byte) (*Image, error) { panic("soon") }

// AppendRecord soon.
func AppendRecord(dst []byte, r Record) []byte { panic("soon") }
