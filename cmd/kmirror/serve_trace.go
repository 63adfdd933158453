package main

import (
	"kmirror/internal/trace/tap"
	"kmirror/proxy"
)

// traceFrom has tracing follow a configuration. What was traced before is ended with its summary.
func (p *process) traceFrom(cfg *Config) error {
	s, err := cfg.traceSettings(p.stderr)
	if err != nil {
		return err
	}
	if s != nil {
		p.log.Info("connections to listeners are traced from now on", "file", cfg.Trace.File, "payload", cfg.Trace.Payload)
	}
	if err := p.tap.Set(s); err != nil {
		p.log.Warn("the trace before it has not been written to its end", "err", err)
	}
	return nil
}

// endTrace writes what is left of the trace and its summary, once no connection is open any more.
func (p *process) endTrace() {
	if err := p.tap.Set(nil); err != nil {
		p.log.Warn("the trace has not been written to its end", "err", err)
	}
}

// watch has the tap shown the connections of listeners, or of gateways.
func (p *process) watch(gateway bool) proxy.WatchFunc {
	return func(listener string, nodeID int32, client string) proxy.Watch {
		if w := p.tap.Open(tap.Server{Listener: listener, Gateway: gateway, NodeID: nodeID}, client); w != nil {
			return w
		}
		return nil
	}
}
