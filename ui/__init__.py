"""Streamlit pages over the Coordinator API: topology, progress and cost."""
