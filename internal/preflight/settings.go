package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// SettingsError says what can't work because of how brokers are configured.
type SettingsError struct{ Findings []Finding }

// Error names the listeners, what is wrong with each, and what to do.
func (e *SettingsError) Error() string {
	var all []string
	for _, f := range e.Findings {
		all = append(all, fmt.Sprintf("%s: %s (%s)", f.Check, f.Detail, f.Hint))
	}
	return strings.Join(all, "; ")
}

// CheckSettings asks brokers, one after the other until one answers, for what must fit before anything is registered: which listener they
// replicate over, and whether there are listeners whose clients must show a certificate. *SettingsError if something does not; any other
// error is why that is not known.
func CheckSettings(ctx context.Context, opts []kgo.Opt, brokers []int32, listeners []Listener, interBroker string) error {
	cl, err := newClient(opts)
	if err != nil {
		return err
	}
	defer cl.Close()
	err = errors.New("no broker is alive")
	for _, id := range brokers {
		var config map[string]string
		if config, err = brokerConfig(ctx, cl, id); err != nil {
			continue
		}
		if bad := misfits(config, listeners, interBroker); len(bad) > 0 {
			return &SettingsError{bad}
		}
		return nil
	}
	return err
}

// misfits are the findings by a broker's configuration with which kmirror would not work.
func misfits(config map[string]string, listeners []Listener, interBroker string) (bad []Finding) {
	var findings []Finding
	if interBroker != "" { // a gateway alone has nothing to do with it
		findings = append(findings, replicatesOver(config, interBroker))
	}
	for _, l := range listeners {
		if l.secure() {
			findings = append(findings, l.certificates(config))
		}
	}
	for _, f := range findings {
		if f.Level == Fail {
			bad = append(bad, f)
		}
	}
	return bad
}

// replicatesOver compares the listener that is named as the brokers' own with what they say. Where they name none it is the one called as
// their security protocol.
func replicatesOver(config map[string]string, named string) Finding {
	f := Finding{Check: "inter-broker listener", Level: OK}
	switch name := cmp.Or(config["inter.broker.listener.name"], config["security.inter.broker.protocol"]); name {
	case named:
		f.Detail = name + ", as brokers say"
	case "":
		f.Level, f.Detail = Warn, "brokers don't say which it is"
		f.Hint = "compare destination.inter_broker_listener with the brokers' inter.broker.listener.name"
	default:
		f.Level, f.Detail = Fail, fmt.Sprintf("brokers replicate over %s, destination.inter_broker_listener says %s", name, named)
		f.Hint = "write destination.inter_broker_listener: " + name
	}
	return f
}

// brokerConfig asks a broker for its configuration.
func brokerConfig(ctx context.Context, cl *kgo.Client, id int32) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	config := map[string]string{}
	described, err := kadm.NewClient(cl).DescribeBrokerConfigs(ctx, id)
	for _, d := range described {
		err = errors.Join(err, d.Err)
		for _, e := range d.Configs {
			config[e.Key] = e.MaybeValue()
		}
	}
	return config, err
}
