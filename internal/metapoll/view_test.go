package metapoll

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"kmirror/protocol/kraft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answer reads "1=a:9092 2=b:9092/rack".
func answer(text string) (list []kmsg.MetadataResponseBroker) {
	for _, field := range strings.Fields(text) {
		b := kmsg.NewMetadataResponseBroker()
		at, rack, ok := strings.Cut(field, "/")
		if ok {
			b.Rack = &rack
		}
		fmt.Sscanf(strings.NewReplacer("=", " ", ":", " ").Replace(at), "%d %s %d", &b.NodeID, &b.Host, &b.Port)
		list = append(list, b)
	}
	return list
}

func plain(host string, port uint16) kraft.Endpoint {
	return kraft.Endpoint{Name: "CLIENT", Host: host, Port: port}
}

// believed prints an image as answer reads it, fenced brokers in brackets.
func believed(img *kraft.Image) string {
	var all []string
	for _, b := range img.Brokers {
		text := fmt.Sprintf("%d=%s:%d", b.ID, b.Endpoints[0].Host, b.Endpoints[0].Port)
		if b.Rack != "" {
			text += "/" + b.Rack
		}
		if b.Fenced {
			text = "(" + text + ")"
		}
		all = append(all, text)
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(strings.Trim(a, "("), strings.Trim(b, "(")) })
	return strings.Join(all, " ")
}

// What one answer takes away or moves is believed when the next one says the same, and what it adds at once.
func TestView(t *testing.T) {
	type step struct {
		after     time.Duration
		says      string
		want      string
		doubt     bool
		unchanged bool
	}
	for name, steps := range map[string][]step{
		"brokers come": {{0, "1=a:1", "1=a:1", false, false}, {0, "1=a:1 2=b:1/r", "1=a:1 2=b:1/r", false, false},
			{0, "1=a:1 2=b:1/r", "1=a:1 2=b:1/r", false, true}, {0, "1=a:1 2=b:1/s", "1=a:1 2=b:1/s", false, false}},
		"one goes for good": {{0, "1=a:1 2=b:1", "1=a:1 2=b:1", false, false}, {0, "1=a:1", "1=a:1 2=b:1", true, true},
			{0, "1=a:1", "1=a:1 (2=b:1)", false, false}, {forgetAfter - time.Second, "1=a:1", "1=a:1 (2=b:1)", false, true},
			{time.Second, "1=a:1", "1=a:1", false, false}},
		"one restarts": {{0, "1=a:1 2=b:1", "1=a:1 2=b:1", false, false}, {0, "1=a:1", "1=a:1 2=b:1", true, true},
			{0, "1=a:1", "1=a:1 (2=b:1)", false, false}, {0, "1=a:1 2=b:1", "1=a:1 2=b:1", false, false},
			{forgetAfter, "1=a:1", "1=a:1 2=b:1", true, true}, {0, "1=a:1", "1=a:1 (2=b:1)", false, false}},
		"one moves": {{0, "1=a:1 2=b:1", "1=a:1 2=b:1", false, false}, {0, "1=a:1 2=b:2", "1=a:1 2=b:1", true, true},
			{0, "1=a:1 2=b:2", "1=a:1 2=b:2", false, false}},
		"one comes back elsewhere": {{0, "1=a:1 2=b:1", "1=a:1 2=b:1", false, false}, {0, "1=a:1", "1=a:1 2=b:1", true, true},
			{0, "1=a:1", "1=a:1 (2=b:1)", false, false}, {0, "1=a:1 2=c:1", "1=a:1 (2=b:1)", true, true},
			{0, "1=a:1 2=c:1", "1=a:1 2=c:1", false, false}},
		"one of three has old news": {{0, "1=a:1 2=b:2 3=c:1", "1=a:1 2=b:2 3=c:1", false, false}, {0, "1=a:1 2=b:1", "1=a:1 2=b:2 3=c:1", true, true},
			{0, "1=a:1 2=b:2 3=c:1", "1=a:1 2=b:2 3=c:1", false, true}, {0, "1=a:1 2=b:2 3=c:1", "1=a:1 2=b:2 3=c:1", false, true},
			{0, "1=a:1 2=b:1", "1=a:1 2=b:2 3=c:1", true, true}},
		"two that say different things": {{0, "1=a:1", "1=a:1", false, false}, {0, "1=a:2", "1=a:1", true, true}, {0, "1=a:3", "1=a:1", true, true},
			{0, "1=a:3", "1=a:3", false, false}},
		"one that knows nothing yet": {{0, "1=a:1 2=b:1", "1=a:1 2=b:1", false, false}, {0, "", "1=a:1 2=b:1", false, true},
			{0, "1=a:1 2=b:1", "1=a:1 2=b:1", false, true}},
		"no addresses": {{0, "1=a:1 2=b:0 -1=c:1 3=d:70000", "1=a:1", false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			var v view
			now := time.Unix(1000, 0)
			for i, s := range steps {
				now = now.Add(s.after)
				changes, doubt := v.take(answer(s.says), plain, now)
				if got := believed(v.image(0)); got != s.want || doubt != s.doubt || (len(changes) == 0) != s.unchanged {
					t.Fatalf("step %d, %q: %q, doubt %v, changes %v; want %+v", i, s.says, got, doubt, changes, s)
				}
			}
		})
	}
}

// An image that was handed out does not change any more.
func TestImagesStay(t *testing.T) {
	var v view
	v.take(answer("1=a:1 2=b:1"), plain, time.Now())
	img := v.image(0)
	for range 2 {
		v.take(answer("1=z:1"), plain, time.Now())
		v.image(1)
	}
	if got := believed(img); got != "1=a:1 2=b:1" {
		t.Errorf("it became %s", got)
	}
}
